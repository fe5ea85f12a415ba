"""The process that runs replicas of vertices: it opens their lanes and every external resource that they need.

Above it: the runner, and users who start a vertex by hand. Below it: the lanes of all kinds.
"""
