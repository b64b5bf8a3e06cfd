"""How a pipeline runs: `direct` over a Source, `tf_data` over streams."""
