// Package wiretest has tshark look at iWARP's bytes, for tests.
package wiretest
