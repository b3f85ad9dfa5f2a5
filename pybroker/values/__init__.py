"""Values by their schemas: what is typed or sent as text becomes bytes, and back."""
