"""Claims of one's own: said in a file, judged by ``lmdyn claims examples/own_study.py RUN …``.

With ``LMDYN_STUDIES=examples/own_study.py`` in the environment of ``lmdyn fit``, runs note that they were said before
anything was observed; without, they are exploratory.
"""

from lmdyn.claims import Above, At, Below, Change, Claim, Condition, Part, Rows, Study

LOSS = Rows("LearningCurves", "loss")  # an observer's class and a quantity that it writes
RHO = Rows("Sparsity", "rho_gradient", "h2", where=(("role", "target"),))  # at a site, of one group of rows
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
            ),  # one number a run, and where it is to lie
            matters="0.1: a correlation below is called slight",
            floor=At(RHO, 0),  # the same of the untrained model
            void_unless=(LEARNED,),  # never what the claim is judged by
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
    inspected=(),  # seeds whose runs were looked at before
)
