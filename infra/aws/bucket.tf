# The bucket of the cell. docs/format.md says what is in it: one object that is replaced, PREFIX/root, and others whose
# names are never used twice.
resource "aws_s3_bucket" "cell" {
  bucket = "${var.name}-${data.aws_caller_identity.current.account_id}-${var.region}"
  lifecycle {
    prevent_destroy = true
  }
}

resource "aws_s3_bucket_public_access_block" "cell" {
  bucket                  = aws_s3_bucket.cell.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "cell" {
  bucket = aws_s3_bucket.cell.id
  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "cell" {
  bucket = aws_s3_bucket.cell.id
  rule {
    bucket_key_enabled = true # otherwise each request asks KMS, which costs more than the request
    apply_server_side_encryption_by_default {
      sse_algorithm     = "aws:kms"
      kms_master_key_id = aws_kms_key.cell.arn
    }
  }
}

# A version that was replaced or deleted stays for some days: a restore begins from it.
resource "aws_s3_bucket_versioning" "cell" {
  bucket = aws_s3_bucket.cell.id
  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "cell" {
  bucket     = aws_s3_bucket.cell.id
  depends_on = [aws_s3_bucket_versioning.cell]

  # Under load the root is replaced each second: a day of that is some 10 GB, a week would be 70.
  rule {
    id     = "roots"
    status = "Enabled"
    filter {
      prefix = "${var.prefix}/root"
    }
    noncurrent_version_expiration {
      noncurrent_days = 1
    }
  }

  rule {
    id     = "deleted"
    status = "Enabled"
    filter {}
    noncurrent_version_expiration {
      noncurrent_days = var.kept_days
    }
    expiration {
      expired_object_delete_marker = true
    }
    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }

  # A process that crashed while it tried the bucket left these.
  rule {
    id     = "probes"
    status = "Enabled"
    filter {
      prefix = "${var.prefix}/probe/"
    }
    expiration {
      days = 1
    }
  }
}

resource "aws_s3_bucket_policy" "cell" {
  bucket     = aws_s3_bucket.cell.id
  policy     = data.aws_iam_policy_document.bucket.json
  depends_on = [aws_s3_bucket_public_access_block.cell]
}

# What no process may do, whatever its role permits.
data "aws_iam_policy_document" "bucket" {
  # A root that is written without a condition overwrites somebody's commit. S3 evaluates both keys together: it refuses
  # what has neither header.
  statement {
    sid       = "RootIsComparedAndSwapped"
    effect    = "Deny"
    actions   = ["s3:PutObject"]
    resources = ["${aws_s3_bucket.cell.arn}/${var.prefix}/root", "${aws_s3_bucket.cell.arn}/${var.prefix}/probe/*"]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Null"
      variable = "s3:if-match"
      values   = ["true"]
    }
    condition {
      test     = "Null"
      variable = "s3:if-none-match"
      values   = ["true"]
    }
  }

  # Everything else is written once.
  statement {
    sid           = "TheRestIsCreated"
    effect        = "Deny"
    actions       = ["s3:PutObject"]
    not_resources = ["${aws_s3_bucket.cell.arn}/${var.prefix}/root", "${aws_s3_bucket.cell.arn}/${var.prefix}/probe/*"]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Null"
      variable = "s3:if-none-match"
      values   = ["true"]
    }
  }

  # Without its root a cell is lost. Nobody deletes it but a person who takes this statement away first.
  statement {
    sid       = "RootStays"
    effect    = "Deny"
    actions   = ["s3:DeleteObject", "s3:DeleteObjectVersion"]
    resources = ["${aws_s3_bucket.cell.arn}/${var.prefix}/root"]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
  }

  statement {
    sid       = "Encrypted"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [aws_s3_bucket.cell.arn, "${aws_s3_bucket.cell.arn}/*"]
    principals {
      type        = "*"
      identifiers = ["*"]
    }
    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}

# One key for everything that is stored.
resource "aws_kms_key" "cell" {
  description         = "Logplane cell ${var.name}"
  enable_key_rotation = true
}

resource "aws_kms_alias" "cell" {
  name          = "alias/${var.name}"
  target_key_id = aws_kms_key.cell.key_id
}
