// Command pingpong sends a message there and back, and sleeps while it is under way.
package main
