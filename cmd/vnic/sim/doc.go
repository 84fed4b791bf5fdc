// Package sim is vnic sim, which runs scenarios of the transport in virtual time. sim/scenario reads a
// scenario's file, falcon/sim runs it, falcon/sim/plot draws the result.
package sim
