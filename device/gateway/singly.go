package gateway

// plain reports whether no offload work is left.
func (o *Offload) plain() bool { return o.GSO == GSONone && !o.NeedsCsum }

// singly is scratch state for writing a frame to a guest that does not accept its offload.
type singly struct {
	frame   PortFrame
	forward Forward
}

// writeSingly writes a frame as separate, complete packets to a port whose guest does neither
// checksums nor segmentation. They are cut in place; the Ethernet header is written in front of
// each.
func (o *output) writeSingly(f *PortFrame, took func(*PortFrame)) {
	if !f.Whole() {
		o.refused(f)
		return
	}
	frame := f.Parts[0]
	h, why := parseIP(frame[ethLen:])
	if why != none { // the headers are not all in the first part; the guest accepted such frames a moment ago
		o.refused(f)
		return
	}
	s := &o.single
	s.forward.start(frame[ethLen:ethLen+h.total], h, f.Offload, f.To.MTU, false)
	ethernet := [ethLen]byte(frame)
	for at := 0; ; {
		begin := max(at-s.forward.headers, 0)
		packet := s.forward.Next()
		if packet == nil {
			return
		}
		whole := frame[begin : begin+ethLen+len(packet)]
		copy(whole, ethernet[:])
		at = s.forward.at
		s.frame = PortFrame{To: f.To, list: -1}
		s.frame.one[0] = whole
		s.frame.Parts = s.frame.one[:1]
		o.write(&s.frame, took)
	}
}
