// Command bandwidth writes into another guest's memory as fast as it goes: many WRITEs outstanding,
// a completion for every eighth.
package main
