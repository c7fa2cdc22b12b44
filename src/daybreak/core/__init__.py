"""Code that all other folders may use. It imports only the standard library, numpy, torch and rich."""
