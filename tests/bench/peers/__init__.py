"""The servers that Postroad is measured beside, one module each."""
