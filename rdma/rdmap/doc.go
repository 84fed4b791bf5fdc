// Package rdmap is the exact arithmetic of the masked atomic operations of RFC 7306: FetchAdd,
// CmpSwap and Swap, which responders carry out. It has no state and imports nothing of this module.
package rdmap
