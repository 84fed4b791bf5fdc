// Package room defines how many bytes sealing adds to a packet. It is all that the packages below
// device/security may know of PSP: they need it to compute how much of the uplink's MTU is left.
package room
