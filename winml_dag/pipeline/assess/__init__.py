"""What looks at finished models and builds: measured, evaluated, analyzed, verified, and made again."""
