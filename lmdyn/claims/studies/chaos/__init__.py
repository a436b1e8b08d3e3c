"""Claims of Inoue et al. 2022 about training and the published network; the study's file has those on initial ones."""
