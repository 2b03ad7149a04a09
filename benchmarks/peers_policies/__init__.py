"""Policies of other products, written anew from their published formulas against pointsman's policy protocol.

They rank mechanisms, not products: each sees the same fresh and complete view of the fleet, which its original does not
have. They are no part of the product.
"""
