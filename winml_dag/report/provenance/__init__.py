"""Describes builds in standard formats: SLSA provenance and a CycloneDX bill of materials."""
