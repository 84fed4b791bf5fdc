package pci

// Capability numbers, PCI Code and ID Assignment.
const (
	capMSI       = 0x05
	capExpress   = 0x10
	capMSIX      = 0x11
	extCapSerial = 0x0003
)

// Of the PCI Express capability, PCI Express 4.0 §7.5.3.
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
	expressCapRBER  = 1 << 15       // role-based error reporting, which 1.1 and later must have
	expressReset    = 1 << 15       // in the device control register
	expressWritable = 0x7fff        // the rest of that register
	expressDefaults = 0x2810        // 512-byte read requests, no snoop, relaxed ordering
	expressGen4x16  = 4 | 16<<4     // 16 GT/s, 16 lanes: what virtual ports say
	expressSpeeds   = 0x1e          // 2.5 to 16 GT/s
	linkExit        = 7<<12 | 7<<15 // latencies that nobody waits for
)

// addExpress adds the capability that makes the function one of PCI Express.
func (s *Space) addExpress() {
	at := s.add(capExpress, expressSize)
	s.express = at
	s.put16(at+expressFlags, expressVersion2)
	s.put32(at+expressDevCap, expressCapReset|expressCapRBER)
	s.put16(at+expressControl, expressDefaults)
	s.free16(at+expressControl, expressWritable)
	s.put32(at+expressLinkCap, expressGen4x16|linkExit)
	s.put16(at+expressLinkSta, expressGen4x16)
	s.put32(at+expressLinkCp2, expressSpeeds)
}

// Of the MSI-X capability, PCI 3.0 §6.8.2.
const (
	msixSize     = 12
	msixControl  = 2
	msixTable    = 4
	msixPending  = 8
	msixWritable = 0xc000 // enable, mask all
)

func (s *Space) addMSIX(i Interrupts) {
	at := s.add(capMSIX, msixSize)
	s.put16(at+msixControl, uint16(i.Vectors-1))
	s.free16(at+msixControl, msixWritable)
	s.put32(at+msixTable, tableOffset|uint32(i.BAR))
	s.put32(at+msixPending, PendingOffset|uint32(i.BAR))
}

// Of the MSI capability, PCI 3.0 §6.8.1: 64-bit addresses, a mask for each vector.
const (
	msiSize     = 24
	msiControl  = 2
	msiAddress  = 4
	msiData     = 12
	msiMask     = 16
	msi64       = 1 << 7
	msiMaskable = 1 << 8
	msiWritable = 0x0071 // enable, vectors given
)

func (s *Space) addMSI(vectors int) {
	at := s.add(capMSI, msiSize)
	s.put16(at+msiControl, uint16(msi64|msiMaskable|log2(vectors)<<1))
	s.free16(at+msiControl, msiWritable)
	s.free32(at+msiAddress, 0xfffffffc)
	s.free32(at+msiAddress+4, 0xffffffff)
	s.free16(at+msiData, 0xffff)
	s.free32(at+msiMask, uint32(uint64(1)<<(1<<log2(vectors))-1))
}

// addSerial adds the device serial number, PCI Express 4.0 §7.9.3, which is the only extended
// capability.
func (s *Space) addSerial(n uint64) {
	const at = 0x100
	s.put32(at, extCapSerial|1<<16)
	s.put32(at+4, uint32(n))
	s.put32(at+8, uint32(n>>32))
}
