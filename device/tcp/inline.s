// An assembly file lets inline_unsafe.go declare a function without a body.
