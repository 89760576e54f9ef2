; What TinyScheme needs to load profiles of SBPL, which is a dialect of it: each
; form is evaluated, parameters, functions and all, and printed with its filters as
; data, for the test to decide by. A form or filter that is not defined here is an
; error, and so is an argument that the real one would not take.
;
; Strings are compared as symbols and taken apart by substring: string-ref does not
; work in Debian's build for 64 bits. Parameters are variables, each profile's by a
; prefix of its own, because lists are searched by programs of Scheme, slowly.

(define (same? a b) (eq? (string->symbol a) (string->symbol b)))
(define (starts? s prefix)
  (and (>= (string-length s) (string-length prefix))
       (same? (substring s 0 (string-length prefix)) prefix)))
(define (strings l) (for-each (lambda (s) (if (not (string? s)) (error "not a string" s))) l))

; parameters

(define prefix "")
(define (profile name) (set! prefix name) (write (list 'profile name)) (newline))
(define (variable name) (string->symbol (string-append prefix ":" name)))
(define-macro (set-param name value) `(define ,(variable name) ,value))
(define (param name)
  (if (defined? (variable name)) (eval (variable name)) (error "no parameter" name)))

; forms

(define (symbols l) (if (and (pair? l) (symbol? (car l))) (cons (car l) (symbols (cdr l))) '()))
(define (filters l) (if (and (pair? l) (symbol? (car l))) (filters (cdr l)) l))
(define (form action operations filters)
  (if (null? operations) (error "no operation"))
  (write (list action operations filters))
  (newline))
(define-macro (allow . body) `(form 'allow ',(symbols body) (list ,@(filters body))))
(define-macro (deny . body) `(form 'deny ',(symbols body) (list ,@(filters body))))
(define (version n) (if (not (= n 1)) (error "version")))

; filters

(define (filter name . values) (strings values) (cons name values))
(define (literal p) (filter 'literal p))
(define (subpath p) (filter 'subpath p))
(define (regex r) (filter 'regex r))
(define (global-name . n) (strings n) (cons 'mach n))
(define (sysctl-name . n) (strings n) (cons 'sysctl n))
(define (sysctl-name-prefix p) (filter 'sysctl-prefix p))
(define (ipc-posix-name-regex r) (filter 'ipc-regex r))
(define-macro (target t) `(filter 'target ,(symbol->string t)))
; Addresses: "localhost:PORT", "HOST:*", "*:PORT" and "*:*"; any other host is refused by the real one.
(define (address which proto a)
  (if (not (memq proto '(ip tcp udp))) (error "protocol" proto))
  (if (not (or (starts? a "localhost:") (starts? a "*:"))) (error "address" a))
  (filter which a))
(define-macro (remote proto a) `(address 'remote ',proto ,a))
(define-macro (local proto a) `(address 'local ',proto ,a))
(define (require-all . f) (cons 'all f))
(define (require-any . f) (cons 'any f))
(define (require-not f) (list 'not f))

; (regex-quote STRING): an expression for just that string

(define special
  (map string->symbol '("\\" "^" "$" "." "[" "]" "|" "(" ")" "*" "+" "?" "{" "}")))
(define (regex-quote s)
  (let loop ((i (- (string-length s) 1)) (out ""))
    (if (< i 0)
        out
        (let ((c (substring s i (+ i 1))))
          (loop (- i 1) (string-append (if (memq (string->symbol c) special) "\\" "") c out))))))
