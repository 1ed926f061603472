"""Write calls that compute with integers and sizes, because the translations use float32, or round in another way."""
