"""From what was measured at small N to what is to be expected at large N.

Collectives' costs are fitted (`alphabeta`), local operations' are looked up (`costs`), and the schedule that both are put
into is asked of the executable for the N in question (`schedule`), never repeated here. `replay` runs it.
"""
