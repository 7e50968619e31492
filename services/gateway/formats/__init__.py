"""How models write their reasoning and their tool calls: one reader for each format (see parts.PartReader)."""
