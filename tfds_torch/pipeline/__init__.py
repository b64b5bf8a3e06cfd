"""tf.data graphs over encoded examples. tensorflow is imported inside functions; torch never."""
