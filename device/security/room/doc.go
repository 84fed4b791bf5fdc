// Package room says how many bytes a seal takes around a packet. It is what those below
// device/security may know of PSP: how much of the uplink's MTU is left.
package room
