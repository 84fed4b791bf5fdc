// Package wiretest is what the tests of packet formats with opcodes and header sets share.
package wiretest
