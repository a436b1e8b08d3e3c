"""Similarity of representations: CCA, CKA, RSA, Procrustes; divergence of distributions."""
