package pci

import "math/bits"

// Capability numbers, PCI Code and ID Assignment.
const (
	capMSI       = 0x05
	capExpress   = 0x10
	capMSIX      = 0x11
	extCapSerial = 0x0003
)

// Offsets and values of the PCI Express capability, PCI Express 4.0 §7.5.3.
const (
	expressSize    = 0x3c
	expressFlags   = 2
	expressDevCap  = 4
	expressControl = 8
	expressLinkCap = 0x0c
	expressLinkSta = 0x12
	expressLinkCp2 = 0x2c

	expressVersion2 = 2             // type 0: an endpoint
	expressCapReset = 1 << 28       // function level reset
	expressCapRBER  = 1 << 15       // role-based error reporting, required since version 1.1
	expressReset    = 1 << 15       // in the device control register
	expressWritable = 0x7fff        // the other bits of that register
	expressDefaults = 0x2810        // 512-byte read requests, no snoop, relaxed ordering
	expressGen4x16  = 4 | 16<<4     // 16 GT/s, 16 lanes, as virtual ports report
	expressSpeeds   = 0x1e          // 2.5 to 16 GT/s
	linkExit        = 7<<12 | 7<<15 // exit latencies of L0s and L1: the largest values, unused here
)

// addExpress adds the PCI Express capability and returns its offset.
func (r *registers) addExpress() (at int) {
	at = r.add(capExpress, expressSize)
	r.put16(at+expressFlags, expressVersion2)
	r.put32(at+expressDevCap, expressCapReset|expressCapRBER)
	r.put16(at+expressControl, expressDefaults)
	r.free16(at+expressControl, expressWritable)
	r.put32(at+expressLinkCap, expressGen4x16|linkExit)
	r.put16(at+expressLinkSta, expressGen4x16)
	r.put32(at+expressLinkCp2, expressSpeeds)
	return at
}

// Offsets and values of the MSI-X capability, PCI 3.0 §6.8.2.
const (
	msixSize     = 12
	msixControl  = 2
	msixTable    = 4
	msixPending  = 8
	msixWritable = 0xc000 // enable, mask all
)

func (r *registers) addMSIX(i Interrupts) {
	at := r.add(capMSIX, msixSize)
	r.put16(at+msixControl, uint16(i.Vectors-1))
	r.free16(at+msixControl, msixWritable)
	r.put32(at+msixTable, tableOffset|uint32(i.BAR))
	r.put32(at+msixPending, PendingOffset|uint32(i.BAR))
}

// Offsets and values of the MSI capability, PCI 3.0 §6.8.1, with 64-bit addresses and a mask bit
// for each vector.
const (
	msiSize     = 24
	msiControl  = 2
	msiAddress  = 4
	msiData     = 12
	msiMask     = 16
	msi64       = 1 << 7
	msiMaskable = 1 << 8
	msiWritable = 0x0071 // enable, number of vectors granted
)

func (r *registers) addMSI(vectors int) {
	at := r.add(capMSI, msiSize)
	r.put16(at+msiControl, uint16(msi64|msiMaskable|log2(vectors)<<1))
	r.free16(at+msiControl, msiWritable)
	r.free32(at+msiAddress, 0xfffffffc)
	r.free32(at+msiAddress+4, 0xffffffff)
	r.free16(at+msiData, 0xffff)
	r.free32(at+msiMask, uint32(uint64(1)<<(1<<log2(vectors))-1))
}

// log2 returns the binary logarithm of a number of vectors, rounded up.
func log2(n int) int { return bits.Len(uint(n - 1)) }

// addSerial adds the device serial number, PCI Express 4.0 §7.9.3, which is the only extended
// capability.
func (r *registers) addSerial(n uint64) {
	const at = 0x100
	r.put32(at, extCapSerial|1<<16)
	r.put32(at+4, uint32(n))
	r.put32(at+8, uint32(n>>32))
}
