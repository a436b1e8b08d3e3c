"""Your own claims: this file defines them, and ``lmdyn claims examples/own_study.py RUN …`` judges them.

Set ``LMDYN_STUDIES=examples/own_study.py`` in the environment of ``lmdyn fit``. The run then records that the claims
existed before its first observation. Otherwise, lmdyn marks the claims as exploratory.
"""

from lmdyn.claims import Above, At, Below, Change, Claim, Condition, Part, Rows, Study

LOSS = Rows("LearningCurves", "loss")  # the class of an observer, and one of its quantities
RHO = Rows("Sparsity", "rho_gradient", "h2", where=(("role", "target"),))  # at one site, in one group of rows
LEARNED = Condition("the loss has fallen by a nat", Change(LOSS), Below(-1.0))

STUDY = Study(
    "me2026_words",
    "What I expect of gradients",
    "my thesis, chapter 2",
    (
        Claim(
            "gradients_follow_frequency",
            "Gradients are the sparser the more frequent the word",
            "section 2.1",
            (
                Part(At(RHO), Above(0.1), "ρ at the end", "fisher"),
            ),  # one number per run, and the region of the claim
            matters="0.1: a correlation below is called slight",
            floor=At(RHO, 0),  # the same number of the untrained model
            void_unless=(LEARNED,),  # never the number by which lmdyn judges the claim
        ),
        Claim(
            "it_grows",
            "… and go on becoming so",
            "section 2.1",
            (Part(Change(RHO, since=1 / 3), Above(0.05), "change of ρ since a third of training"),),
            matters="0.05: half of the above",
            floor="0: a curve that has levelled off",
            void_unless=(LEARNED,),
        ),
    ),
    inspected=(),  # seeds whose runs the author had seen before
)
