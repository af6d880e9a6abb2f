"""Evidence: commands that run dphead on real data and store what they measured."""
