// Package plot draws the series of a simulation's result as SVG: goodput, windows, delay and queue
// over time. It is the one user of the plotting library and serves the command line only.
package plot
