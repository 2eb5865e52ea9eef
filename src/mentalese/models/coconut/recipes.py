RECIPES: list = []
