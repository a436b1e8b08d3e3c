"""What figures are drawn with, whatever they show."""
