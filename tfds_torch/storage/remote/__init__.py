"""Object stores: objects are read by number from blocks that a process of their own fetches into a bounded cache."""
