package shard

import (
	"fmt"
	"testing"
)

// TestWiredByAnyNumbers checks which end asks for the connection: addresses decide first, and
// numbers between queue pairs of one function. (DEV-910)
func TestWiredByAnyNumbers(t *testing.T) {
	for _, higher := range []int{0, 1} { // which queue pair has the higher number
		for _, reverse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d higher, reverse %t", higher, reverse), func(t *testing.T) {
				v := newVirtual(t, 1, wire100us)
				a, b := drivers(v)
				[]*driver{a, b}[higher].createQP()
				if a.qpn == b.qpn {
					t.Fatal("the numbers are equal")
				}
				if reverse {
					a, b = b, a
				}
				wiredPair(v, a, b, false)
				exchange(t, a, b, 3000)
				exchange(t, b, a, 3000)
			})
		}
	}
	for _, reverse := range []bool{false, true} {
		v := newVirtual(t, 1, wire100us)
		a, _ := drivers(v)
		ends := [2]uint32{0: a.qpn}
		a.createQP()
		ends[1] = a.qpn
		if reverse {
			ends[0], ends[1] = ends[1], ends[0]
		}
		for i, qpn := range ends {
			a.qpn = qpn
			a.toRTR(ends[1-i], a.fn.GID())
		}
		v.idle(1e9)
		for _, qpn := range ends {
			if !a.fn.Verbs().QP(qpn).Connected() {
				t.Errorf("reverse %t: queue pair %#x of two of one function is not connected", reverse, qpn)
			}
		}
		if wirings, held := a.fn.conns.Waiting(); wirings+held != 0 {
			t.Errorf("reverse %t: %d wirings, %d held", reverse, wirings, held)
		}
	}
}
