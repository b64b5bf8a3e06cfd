"""Object stores: objects are read by number, from blocks that a fetcher process puts into a bounded cache."""
