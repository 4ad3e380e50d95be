"""The reconcile flow of one pool: observe -> revisions -> desired -> apply -> status. Start with reconcile.py."""
