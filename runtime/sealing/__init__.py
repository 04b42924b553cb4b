"""What makes bytes unreadable and unforgeable for others, quickly: a `Sealer` at one end, an `Opener` at the other."""
