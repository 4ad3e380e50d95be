"""The operations of a decoder, each holding its own tensors. Rows are packed: [tokens, width]."""
