package segment
