"""The reconcile flow of one pool: observe -> desired -> apply -> status. Start with reconcile.py."""
