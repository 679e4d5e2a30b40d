// This file lets main.go declare a function without a body.
