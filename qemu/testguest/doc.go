// Command testguest is the init and the only program of the guests that package qemu's tests boot.
// As PID 1 it runs guestinit. As PID 1's child it connects to the host, sends the guest-physical
// address of a page with a known pattern, and echoes what it receives until the host stops sending.
package main
