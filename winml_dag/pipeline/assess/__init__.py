"""Work on finished models and builds: measure, evaluate, analyze, verify and reproduce them."""
