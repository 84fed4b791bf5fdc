// Package loglimit keeps what a guest or client can trigger from flooding the
// log: at most one line a second per Limiter, with the number left out.
package loglimit
