"""Claims of Inoue et al. 2022 on training, and on the published network; those on initial ones are the study's file."""
