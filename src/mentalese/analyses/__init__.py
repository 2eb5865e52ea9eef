"""Pictures and their numbers: what runs, results and models look like. Nothing else imports them."""
