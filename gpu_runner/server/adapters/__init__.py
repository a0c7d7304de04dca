"""What is known of each server: how to tell it, what it can do, what its settings are, how a policy becomes flags."""
