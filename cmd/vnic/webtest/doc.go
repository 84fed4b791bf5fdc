// Package webtest has the tests of the page that shows a NIC, in a real browser. They also make the
// pictures of the page in docs/img.
package webtest
