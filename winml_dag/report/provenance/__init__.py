"""Builds told to others in formats that everybody reads: SLSA provenance and a CycloneDX bill of materials."""
