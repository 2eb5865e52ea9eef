"""The mechanism suite: does each way of thinking do what it is for, at equal cost, with all methods tuned?"""
