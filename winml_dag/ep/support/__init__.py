"""What execution providers take, as was measured: cases, verdicts, and the tables that have them."""
